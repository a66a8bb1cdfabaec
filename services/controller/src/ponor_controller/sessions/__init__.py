"""How nodes change metadata: one stream of frames per node process, with operations that are answered once and for all."""
