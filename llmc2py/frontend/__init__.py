"""From text to the IR: preprocessing, parsing, intents, slices and C references."""
