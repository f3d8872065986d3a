"""The stages of learning, one file each: corpus, tokenizer, pretraining, collection, fine-tuning."""
