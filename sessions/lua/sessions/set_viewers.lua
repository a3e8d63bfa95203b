-- Stores how many connections of one worker watch a session, and publishes how many do on all workers.
-- Watching is a use: the session's idle life begins anew.
-- KEYS m msg tree ids runs q share v
-- ARGV 1 pub 2 live 3 session id 4 replica 5 count 6 life_ms 7 idle_ms
-- ok total
local now, v = now_ms(), KEYS[8]
local active = redis.call('HGET', KEYS[1], 'active_response_id')
if ARGV[5] == '0' or not active then
  redis.call('HDEL', v, ARGV[4])
else
  if active == '' then let_go(ARGV[7], {unpack(KEYS, 1, 7)}) end
  redis.call('HSET', v, ARGV[4], string.format('%s %.0f', ARGV[5], now))
end
local total = 0
local rows = redis.call('HGETALL', v)
for i = 1, #rows, 2 do
  local count, counted_at = string.match(rows[i + 1], '^(%d+) (%d+)$')
  if tonumber(counted_at) <= now - ARGV[6] then
    redis.call('HDEL', v, rows[i]) -- of a worker that died
  else
    total = total + count
  end
end
redis.call('PEXPIRE', v, ARGV[6])
redis.call(ARGV[1], ARGV[2], string.format(
  '{"origin":"","frame":{"type":"viewer.changed","session_id":"%s","viewers":%d}}', ARGV[3], total))
return {'ok', total}
