// One end of static shared memory. A kernel's variables lie in its object's .bss, which the linker puts between the two
// objects made from this file (SIM_EDGE names the symbol). A section attribute would be simpler, but the compiler drops
// it from variables inside templates.
extern "C" {
alignas(128) __attribute__((visibility("hidden"))) unsigned char SIM_EDGE[128];
}
