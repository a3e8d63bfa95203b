-- Locks or unlocks a session, or evicts its viewers.
-- KEYS m log
-- ARGV 1 pub 2 live 3 call_id 4 '' or + and the reason that later answers are refused with, or - to unlock
--      5 event or '' 6 log_entries 7 log_ms
-- ok uid | not_found
local m = redis.call('HMGET', KEYS[1], 'uid', 'epoch', 'calls')
if not m[1] then return {'not_found'} end
if is_among(m[3], ARGV[3]) then return {'ok', m[1]} end -- applied before, the reply was lost
redis.call('HSET', KEYS[1], 'calls', with_call(m[3], ARGV[3]))
if ARGV[4] ~= '' then
  redis.call('HSET', KEYS[1], 'locked', string.sub(ARGV[4], 2))
  redis.call('HINCRBY', KEYS[1], 'revision', 1)
end
if ARGV[5] ~= '' then
  publish_session(m[2], log_event(KEYS[1], KEYS[2], ARGV[5], ARGV[6], ARGV[7]), ARGV[5])
end
return {'ok', m[1]}
