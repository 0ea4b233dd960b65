"""REST: jobs of a driver, watched and changed from outside, under Flink's paths and with its JSON.

    http_server     one thread that speaks HTTP; bounded in time, size and number
    access          who may ask what
    handlers        path and body -> what is done, and the answer
    operations      what takes longer than a request: savepoints, checkpoints, rescaling
    bodies          JSON of jobs
    registration    how programs of the same user on the same machine find a driver
    client          the other side
"""
