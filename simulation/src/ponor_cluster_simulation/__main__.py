"""`python -m ponor_cluster_simulation`: `ponor simulate` without the rest of the `ponor` command."""

from ponor_cluster_simulation.command import simulate_app

if __name__ == "__main__":
    simulate_app()
