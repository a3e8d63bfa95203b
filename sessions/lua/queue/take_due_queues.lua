-- Sessions whose queue is to be looked at; for a while they are no other worker's to look at.
-- KEYS queues
-- ok mark ids
read_args({'limit', 'after_ms'})
local now = now_ms()
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, args.limit)
local mark = string.format('%.0f', now + args.after_ms)
for _, id in ipairs(ids) do redis.call('ZADD', KEYS[1], mark, id) end
return {'ok', mark, ids}
