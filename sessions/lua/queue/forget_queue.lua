-- Drops a session from the index of queues, unless somebody has entered it again meanwhile.
-- KEYS queues
-- ok
read_args({
  'session_id',
  'looked_at', -- the score that it had
})
local score = redis.call('ZSCORE', KEYS[1], args.session_id)
if score == args.looked_at then redis.call('ZREM', KEYS[1], args.session_id) end
return {'ok'}
