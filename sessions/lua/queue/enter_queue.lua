-- Has a session's queue looked at after that time, by Redis' clock.
-- KEYS queues
-- ok
read_args({'session_id', 'after_ms'})
redis.call('ZADD', KEYS[1], now_ms() + args.after_ms, args.session_id)
return {'ok'}
