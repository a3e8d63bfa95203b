-- Writes messages of a session that does not exist yet; its parts go by themselves if it never does.
-- KEYS m msg tree ids
-- ARGV 1 life_ms 2 place of the first in the tree, from 0 3 number of token id pairs 4.. message id and token ids,
--      then id, parent and body of each message
-- ok | exists
if redis.call('EXISTS', KEYS[1]) == 1 then return {'exists'} end
local start = 4 + 2 * ARGV[3]
for place = 4, start - 1, 2 do redis.call('HSET', KEYS[4], ARGV[place], ARGV[place + 1]) end
local is_new = redis.call('LLEN', KEYS[3]) == tonumber(ARGV[2]) -- or the first reply was lost
for place = start, #ARGV, 3 do
  redis.call('HSET', KEYS[2], ARGV[place], ARGV[place + 2])
  if is_new then redis.call('RPUSH', KEYS[3], ARGV[place] .. ' ' .. ARGV[place + 1]) end
end
for place = 2, 4 do redis.call('PEXPIRE', KEYS[place], ARGV[1]) end
return {'ok'}
