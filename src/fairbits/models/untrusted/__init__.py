"""What strangers wrote: the configuration and the tokenizer of a model, checked before a library parses them."""
