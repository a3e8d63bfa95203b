-- One reading command on many keys. Replies are those that Lua knows: a map is a flat array, a score is a string.
-- KEYS in one slot
-- ok replies
read_args({'command'}, {
  'words', -- what follows the key
})
local replies = {}
for number, key in ipairs(KEYS) do
  replies[number] = redis.call(args.command, key, unpack(args.words))
end
return {'ok', replies}
