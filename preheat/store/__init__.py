"""The cache on disk: bytes under named keys, whole or not at all. Does not know what the bytes mean."""
