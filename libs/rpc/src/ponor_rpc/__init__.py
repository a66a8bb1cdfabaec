"""RPC: generated protobuf messages (package `ponor`), and gRPC as an adapter of the network port.

No service logic lives here: services speak frames over `ponor_runtime.network`, and only this member knows that gRPC carries them.
"""

from ponor_rpc.grpc_polling import prefer_one_poller

prefer_one_poller()  # before any module here imports gRPC
