-- Tests of departures.sql: penstock test examples

-- test: flights are counted per airport and day of their schedule
INSERT INTO flights (scheduled, delay_min, origin) VALUES
    ('2026-01-01 08:00:00', 10, 'FRA'),
    ('2026-01-01 23:59:59', 20, 'FRA'),
    ('2026-01-02 00:00:00',  0, 'FRA'),
    ('2026-01-01 12:00:00', -5, 'LHR');

SELECT * FROM departures ORDER BY origin, window_start;
-- | origin | window_start        | window_end          | flights | mean_delay_min | max_delay_min |
-- |--------|---------------------|---------------------|---------|----------------|---------------|
-- | FRA    | 2026-01-01 00:00:00 | 2026-01-02 00:00:00 |       2 |           15.0 |            20 |
-- | FRA    | 2026-01-02 00:00:00 | 2026-01-03 00:00:00 |       1 |            0.0 |             0 |
-- | LHR    | 2026-01-01 00:00:00 | 2026-01-02 00:00:00 |       1 |           -5.0 |            -5 |

-- test: a flight that comes nine hours late is still counted, and one that is later is not
INSERT INTO flights (scheduled, delay_min, origin) VALUES
    ('2026-01-01 23:00:00', 1, 'FRA'),
    ('2026-01-02 08:59:59', 2, 'FRA'),
    ('2026-01-01 22:00:00', 3, 'FRA'),
    ('2026-01-02 09:00:00', 4, 'FRA'),
    ('2026-01-01 21:00:00', 5, 'FRA');

SELECT window_start, flights, max_delay_min FROM departures ORDER BY window_start;
-- | window_start        | flights | max_delay_min |
-- |---------------------|---------|---------------|
-- | 2026-01-01 00:00:00 |       2 |             3 |
-- | 2026-01-02 00:00:00 |       2 |             4 |
