"""Tesserae's placement steps behind any ordering of jobs: pack pairs, choose parallelism strategies, migrate least."""
