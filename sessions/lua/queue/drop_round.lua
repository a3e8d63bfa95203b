-- The answer that was to follow by itself does not, if it is still the one that the caller has read.
-- KEYS m
-- ok
read_args({'next_round'})
if redis.call('HGET', KEYS[1], 'next_round') == args.next_round then redis.call('HDEL', KEYS[1], 'next_round') end
return {'ok'}
