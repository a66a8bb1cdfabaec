"""What an operation may change: one file per noun, each a set of pure functions `(body, situation) -> Decision`.

A validator reads the view (committed rows and what is proposed above them), says which records carry the change and what the caller is told, and
changes nothing itself. A refusal is an `OperationError` with the code of proto/ponor/common/v1/error.proto.
"""
