"""Several machines as one job: topology, ranks, what started zlaunch, and the rendezvous."""
