"""State of one partition that survives a change of leader: checkpoint, producers, leader epochs."""
