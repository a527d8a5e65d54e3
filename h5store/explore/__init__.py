"""Looking at a store before training on it: statistics, plots, the card in a notebook. Imports no adapter."""
