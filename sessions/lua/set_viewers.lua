-- Says how many connections of one worker watch a session, and tells all workers how many do together.
-- KEYS m v
-- ARGV 1 pub 2 live 3 session id 4 replica 5 count 6 life_ms
-- ok total
local now = now_ms()
if ARGV[5] == '0' or redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HDEL', KEYS[2], ARGV[4])
else
  redis.call('HSET', KEYS[2], ARGV[4], string.format('%s %.0f', ARGV[5], now))
end
local total = 0
local rows = redis.call('HGETALL', KEYS[2])
for i = 1, #rows, 2 do
  local count, counted_at = string.match(rows[i + 1], '^(%d+) (%d+)$')
  if tonumber(counted_at) <= now - ARGV[6] then
    redis.call('HDEL', KEYS[2], rows[i]) -- of a worker that died
  else
    total = total + count
  end
end
redis.call('PEXPIRE', KEYS[2], ARGV[6])
redis.call(ARGV[1], ARGV[2], string.format(
  '{"origin":"","frame":{"type":"viewer.changed","session_id":"%s","viewers":%d}}', ARGV[3], total))
return {'ok', total}
