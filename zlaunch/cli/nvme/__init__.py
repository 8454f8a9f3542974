"""Commands about drives for offload to NVMe."""
