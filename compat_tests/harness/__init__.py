"""What the compatibility tests share: server processes, tools, hand-made frames, checkers."""
