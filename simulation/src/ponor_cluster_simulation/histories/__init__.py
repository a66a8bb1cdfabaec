"""Histories: what clients asked and what they were told, judged without knowing how it was done.

The same checkers serve simulated runs, where times are virtual, and real processes, whose clients write JSON lines. They import nothing of the services.
"""
