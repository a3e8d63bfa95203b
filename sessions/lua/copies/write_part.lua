-- Writes messages of a session that does not exist yet; its parts go by themselves if it never does.
-- KEYS m msg tree ids copy
-- ARGV 1 call_id 2 lease_ms 3 life_ms 4 place of the first in the tree, from 0 5 number of token id pairs
--      6.. message id and token ids, then id, parent and body of each message
-- ok | lost (the call was silent for too long, or the session exists)
if redis.call('EXISTS', KEYS[1]) == 1 or redis.call('GET', KEYS[5]) ~= ARGV[1] then return {'lost'} end
local start = 6 + 2 * ARGV[5]
for place = 6, start - 1, 2 do redis.call('HSET', KEYS[4], ARGV[place], ARGV[place + 1]) end
local is_new = redis.call('LLEN', KEYS[3]) == tonumber(ARGV[4]) -- or the first reply was lost
for place = start, #ARGV, 3 do
  redis.call('HSET', KEYS[2], ARGV[place], ARGV[place + 2])
  if is_new then redis.call('RPUSH', KEYS[3], ARGV[place] .. ' ' .. ARGV[place + 1]) end
end
for place = 2, 4 do redis.call('PEXPIRE', KEYS[place], ARGV[3]) end
redis.call('PEXPIRE', KEYS[5], ARGV[2])
return {'ok'}
