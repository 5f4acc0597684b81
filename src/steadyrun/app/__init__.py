"""How do the parts come together? From a configuration to what works."""
