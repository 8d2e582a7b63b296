"""What the drivers in bench/ share: servers, a client, text, GGUF metadata, statistics. Standard library only."""
