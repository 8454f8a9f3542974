def test_a_time_between_events_can_be_divided_by_as_deepspeeds_comms_logger_does() -> None:
    from zlaunch.estimate.rehearsal.device import Event  # which imports torch

    assert Event().elapsed_time(Event()) > 0
