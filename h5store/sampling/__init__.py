"""Pure arithmetic: number of samples, block and seed in; sample ids out. No I/O, never sees a Reader."""
