from zlaunch.estimate.rehearsal.allocation_log import AllocationLog, Block


def log_of_a_bucket() -> tuple[AllocationLog, Block]:
    """Allocate a tensor of 10 bytes, and a bucket of 100."""
    log = AllocationLog()
    with log.in_phase("backward"):
        log.allocate("pageable", "gradients", 10)
        return log, log.allocate_untouched("pageable", "buckets", 100)


def test_a_bucket_has_pages_as_far_as_it_was_written() -> None:
    log, bucket = log_of_a_bucket()
    for end in (20, 30, 25):
        log.touch(bucket, end)
    (phase,) = log.phases()
    assert phase.peak == phase.end == {"pageable": 40, "addressed": 110}
    assert phase.parts["pageable"] == {"buckets": 30, "gradients": 10}


def test_a_bucket_leaves_nothing_behind() -> None:
    log, bucket = log_of_a_bucket()
    log.touch(bucket, 20)
    log.free(bucket)
    (phase,) = log.phases()
    assert (phase.peak, phase.end) == ({"pageable": 30, "addressed": 110}, {"pageable": 10, "addressed": 10})


def test_without_a_bucket_all_that_is_allocated_is_written() -> None:
    log = AllocationLog()
    with log.in_phase("load"):
        log.allocate("pageable", "parameters", 10)
    (phase,) = log.phases()
    assert phase.peak == {"pageable": 10}
