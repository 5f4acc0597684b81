"""The nouns of the runtime as plain data, and the pure rules over them."""
