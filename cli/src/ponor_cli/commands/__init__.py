"""Commands of `ponor`: options, the call, and the printed result."""
