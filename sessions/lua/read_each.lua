-- One reading command on many keys. Replies are those that Lua knows: a map is a flat array, a score is a string.
-- KEYS in one slot
-- ARGV 1 the command's name 2.. what follows its key
-- ok replies
local replies = {}
for number, key in ipairs(KEYS) do
  replies[number] = redis.call(ARGV[1], key, unpack(ARGV, 2))
end
return {'ok', replies}
