"""A GGUF file measured by llama.cpp itself: its kernels compute the predictions, fairbits those of the reference."""
