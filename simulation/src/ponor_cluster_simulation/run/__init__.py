"""One run: its plan, its parts, its execution, and the judgement at its end."""
