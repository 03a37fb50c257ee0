"""The benchmark: ours and other systems in turn, on the same texts, beside what the machine can do."""
