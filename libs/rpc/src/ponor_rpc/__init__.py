"""RPC: generated protobuf messages (package `ponor`), and an adapter of the network port for gRPC.

Services exchange frames over `ponor_runtime.network`; only this member depends on gRPC.
"""

from ponor_rpc.grpc_polling import prefer_one_poller

prefer_one_poller()  # before any module here imports gRPC
