"""Programs that write files of this repository; none of them is shipped."""
