"""The cache on disk: bytes under named keys, whole or not at all; knows not what they mean."""
