-- The answer that was to follow by itself does not, if it is still the one that the caller has read. After a stop, what
-- waits in the queue does not begin by itself either.
-- KEYS m log
-- ok dropped
read_args({
  'channel', 'next_round',
  'pauses', -- 1 after a stop, or ''
  'log_entries', 'log_ms',
})
local m, log = unpack(KEYS)
if redis.call('HGET', m, 'next_round') ~= args.next_round then return {'ok', 0} end
redis.call('HDEL', m, 'next_round')
if args.pauses ~= '' and has_queue(m) and redis.call('HGET', m, 'queue_paused') ~= '1' then
  redis.call('HSET', m, 'queue_paused', 1)
  local event = new_queue_event(m)
  local offset = log_event(m, log, event, args.log_entries, args.log_ms)
  publish_session(redis.call('HGET', m, 'epoch'), offset, event)
end
return {'ok', 1}
