"""`zlaunch nvme tune`: measure a drive with DeepSpeed's own tool, and choose the settings of `aio`."""
