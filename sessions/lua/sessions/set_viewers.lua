-- Stores how many connections of one worker watch a session, and publishes how many do on all workers.
-- Watching is a use: the session's idle life begins anew.
-- KEYS v m msg tree ids runs q share
-- ok total
read_args({'channel', 'session_id', 'replica', 'count', 'life_ms', 'idle_ms'})
local v, m = unpack(KEYS)
local now = now_ms()
local active = redis.call('HGET', m, 'active_response_id')
if args.count == '0' or not active then
  redis.call('HDEL', v, args.replica)
else
  if active == '' then let_go(args.idle_ms, {unpack(KEYS, 2)}) end
  redis.call('HSET', v, args.replica, string.format('%s %.0f', args.count, now))
end
local total = 0
local rows = redis.call('HGETALL', v)
for i = 1, #rows, 2 do
  local count, counted_at = string.match(rows[i + 1], '^(%d+) (%d+)$')
  if tonumber(counted_at) <= now - args.life_ms then
    redis.call('HDEL', v, rows[i]) -- of a worker that died
  else
    total = total + count
  end
end
redis.call('PEXPIRE', v, args.life_ms)
publish(string.format('{"origin":"","frame":{"type":"viewer.changed","session_id":"%s","viewers":%d}}',
  args.session_id, total))
return {'ok', total}
