// Counts what a warp asks of memory. The lanes of a warp run one after the other here, so their accesses are laid side by
// side afterwards: the k-th time a lane passes an instruction belongs to the k-th time of the other lanes, since they
// last came together. Each such group is one warp instruction; its distinct 32-byte sectors go through a small model of
// the L1 (direct-mapped, empty when a block begins), and what misses is traffic to the L2.
// What it does not see: the order of warps among each other, and instructions that touch no memory.
#pragma once

enum { MAX_PLACES = 4096, ENTRY_SECTORS = 64, MAX_OCCURRENCES = 1 << 16, MAX_L1 = 8192 };

struct Entry { uint32_t count; uint32_t sector[ENTRY_SECTORS]; };

// An instruction that touches memory, known by its return address.
struct Place {
    uintptr_t at;
    uint32_t buffer;  // 1 + the array it touched last, nearly always the one it touches next; 0: none yet
    uint32_t length, capacity;
    int kind;
    bool early;
    uint32_t passed[WARP];
    Entry* entries;
};

static Place places[MAX_PLACES];
static Place* used_places[MAX_PLACES];
static int used_count;
static uint32_t l1_tags[MAX_L1];
static uint32_t* counts;      // the current block's
static uint32_t warp_rounds[MAX_WARPS];

static inline Place* place_of(uintptr_t at) {
    size_t i = (at >> 2) * 0x9e3779b1u % MAX_PLACES;
    for (int probe = 0; probe < 64; probe++, i = (i + 1) % MAX_PLACES) {
        if (places[i].at == at) return places + i;
        if (!places[i].at) { places[i].at = at; return places + i; }
    }
    return places + i;  // more places than the table holds: two share one, which only blurs the count
}

static inline void count_sector(Entry* entry, SimBuffer* buffer, uint64_t sector) {
    const uint32_t id = (uint32_t)(buffer->virtual_sector + sector);
    const uint32_t n = entry->count;
    if (n && entry->sector[n - 1] == id) return;
    for (uint32_t i = 0; i < n; i++)
        if (entry->sector[i] == id) return;
    if (n == ENTRY_SECTORS) return;
    entry->sector[entry->count++] = id;
    uint32_t* word = buffer->touched + sector / 32;
    const uint32_t bit = 1u << (sector % 32);
    if (!(*word & bit)) { *word |= bit; buffer->distinct++; }
}

static inline void count_access(Place* place, SimBuffer* buffer, uint64_t offset, size_t size, int kind, bool early) {
    const int lane = current % WARP;
    uint32_t k = place->passed[lane]++;
    if (k >= MAX_OCCURRENCES) k = MAX_OCCURRENCES - 1;
    if (!place->length) {
        used_places[used_count++] = place;
        place->kind = kind;
        place->early = early;
    }
    if (k >= place->capacity) {
        const uint32_t wanted = k < 8 ? 16 : 2 * k;
        grow(place->entries, wanted);
        place->capacity = wanted;
    }
    while (k >= place->length) place->entries[place->length++].count = 0;
    Entry* entry = place->entries + k;
    const uint64_t last = (offset + size - 1) / 32;
    for (uint64_t sector = offset / 32; sector <= last; sector++) count_sector(entry, buffer, sector);
}

static inline void count_entry(const Place* place, const Entry* entry) {
    counts[INSTRUCTIONS]++;
    counts[REQUESTED] += entry->count;
    if (place->early) counts[EARLY]++;
    uint32_t line = ~0u, lines = 0;
    for (uint32_t i = 0; i < entry->count; i++) {
        const uint32_t sector = entry->sector[i];
        if (sector / 4 != line) { line = sector / 4; lines++; }
        if (place->kind == SIM_READ) {
            uint32_t* tag = l1_tags + sector % request->l1_sectors;
            if (*tag != sector) { *tag = sector; counts[L2_READ]++; }
        }
    }
    counts[LINES] += lines;
    if (place->kind == SIM_WRITE) counts[L2_WRITTEN] += entry->count;
    if (place->kind == SIM_ATOMIC) counts[ATOMICS] += entry->count;
}

// The lanes of the current warp have come together, or all have stopped: close the books on what they did.
static void count_flush(int warp) {
    if (!used_count) return;
    uint32_t rounds = 0;
    for (int u = 0; u < used_count; u++)
        if (used_places[u]->length > rounds) rounds = used_places[u]->length;
    for (uint32_t k = 0; k < rounds; k++)
        for (int u = 0; u < used_count; u++)
            if (k < used_places[u]->length) count_entry(used_places[u], used_places[u]->entries + k);
    for (int u = 0; u < used_count; u++) {
        used_places[u]->length = 0;
        memset(used_places[u]->passed, 0, sizeof used_places[u]->passed);
    }
    warp_rounds[warp] += rounds;
    used_count = 0;
}

static void count_block_begins() {
    counts = request->counters + (size_t)sim_block.x * COUNTERS;
    memset(l1_tags, 0xff, sizeof(uint32_t) * request->l1_sectors);
    memset(warp_rounds, 0, sizeof warp_rounds);
}

static void count_block_ends() {
    for (int w = 0; w < warp_count; w++)
        if (warp_rounds[w] > counts[ROUNDS]) counts[ROUNDS] = warp_rounds[w];
}
