"""What a training run keeps in memory, and where: its terms, its formulas, its allocators."""
