"""Which languages and experts are at risk, and which languages to calibrate on, before anything is quantized."""
