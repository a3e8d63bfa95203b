-- Drops entries of an index, but for those that were written again meanwhile.
-- KEYS index
-- ARGV 1 member 2 score, and so on
-- ok
for i = 1, #ARGV, 2 do
  local score = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if score and tonumber(score) == tonumber(ARGV[i + 1]) then redis.call('ZREM', KEYS[1], ARGV[i]) end
end
return {'ok'}
