-- Departures per airport and day: flights, mean and maximum delay, from 20,000 real flights.
--
-- The same rows as those of departures.py. They come in the order in which the aircraft really left, event time is when
-- they should have: the stream is out of order by up to 491 minutes, so the watermark waits nine hours and no row is late.

CREATE TABLE flights (
    scheduled TIMESTAMP(6),
    departed TIMESTAMP(6),
    delay_min BIGINT,
    distance_mi BIGINT,
    origin STRING,
    destination STRING,
    WATERMARK FOR scheduled AS scheduled - INTERVAL '9' HOUR
) WITH ('connector' = 'filesystem', 'path' = 'examples/data/flights.jsonl', 'format' = 'json');

CREATE TABLE departures (
    origin STRING,
    window_start TIMESTAMP(6),
    window_end TIMESTAMP(6),
    flights BIGINT,
    mean_delay_min DOUBLE,
    max_delay_min BIGINT
) WITH ('connector' = 'filesystem', 'path' = '${out:out/departures-sql}', 'format' = 'json', 'existing' = 'replace');

INSERT INTO departures
SELECT origin, window_start, window_end, COUNT(*), AVG(delay_min), MAX(delay_min)
FROM TUMBLE(TABLE flights, DESCRIPTOR(scheduled), INTERVAL '1' DAY)
GROUP BY origin, window_start, window_end;
