-- Ends a run, with exactly one winner: last entries, message, usage, `message.updated`, the next in the queue. A stored
-- stop allows the status `cancelled` alone, with what that stop said: it was promised to whoever sent it. PEXPIRE comes
-- first: with it the script may go on when memory is full. KEYS m msg log r e tok q runs ids tree share ARGV 1 pub 2
-- live 3 rid 4 fence 5 first 6 status 7 reason 8 engine 9 message id 10 its body 11 text_length 12 input_tokens 13
-- output_tokens 14 keep_ms 15 token ids to keep or '' 16 message.updated 17 token bytes 18 log_entries 19 log_ms 20
-- idle_ms 21 seen, of the stop that it ends with, or '' 22 response.done as it is published, or '' 23 number of field
-- arguments 24.. field pairs, then entries (last: response.done) ok offset sequence_number next_rid uid now repeated |
-- cancelled seen by reason ended status reason sequence_number engine text_length fence | lost fence owner | gap
-- sequence_number num_tokens | gone
local r = redis.call('HMGET', KEYS[4], 'fence', 'status', 'sequence_number', 'cancel', 'owner', 'reason', 'engine',
  'seen_sequence_number', 'cancel_by', 'cancel_reason', 'text_length', 'uid', 'done_offset', 'done_at', 'next',
  'num_tokens')
if not r[1] then return {'gone'} end
local num_fields = tonumber(ARGV[23])
local first, start = tonumber(ARGV[5]), 24 + num_fields
local last = first + #ARGV - start
if not is_live(r[2]) then
  if r[1] == ARGV[4] and r[2] == ARGV[6] and tonumber(r[3]) == last then -- our own end, the reply was lost
    return {'ok', tonumber(r[13]), last, r[15], r[12], tonumber(r[14]), 1}
  end
  return {'ended', r[2], r[6], tonumber(r[3]), r[7], tonumber(r[11]), tonumber(r[1])}
end
if r[1] ~= ARGV[4] then return {'lost', tonumber(r[1]), r[5]} end
if first ~= r[3] + 1 then return {'gap', tonumber(r[3]), tonumber(r[16])} end
local is_as_stopped = ARGV[6] == 'cancelled' and ARGV[7] == r[10] and ARGV[21] == (r[8] or '')
if r[4] == '1' and not is_as_stopped then return {'cancelled', r[8] or '', r[9] or '', r[10] or ''} end

local m = redis.call('HMGET', KEYS[1], 'active_response_id', 'epoch', 'input_tokens', 'output_tokens')
if not m[2] then return {'gone'} end -- nothing of a session is re-created half
local input_tokens, output_tokens = grown(m[3], ARGV[12]), grown(m[4], ARGV[13])

drop_uncounted(KEYS[5], tonumber(r[3]))

local now = now_ms()
redis.call('PEXPIRE', KEYS[4], ARGV[14])
for i = start, #ARGV do
  redis.call('XADD', KEYS[5], (first + i - start) .. '-0', 'd', ARGV[i])
end
redis.call('PEXPIRE', KEYS[5], ARGV[14])
if ARGV[17] ~= '' then
  redis.call('APPEND', KEYS[6], ARGV[17])
  redis.call('HINCRBY', KEYS[4], 'num_tokens', #ARGV[17] / 4)
end
redis.call('PEXPIRE', KEYS[6], ARGV[14])
redis.call('ZADD', KEYS[8], now + ARGV[14], ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[8], '-inf', now)

local next_rid = ''
if m[1] == ARGV[3] then
  next_rid = redis.call('LPOP', KEYS[7]) or ''
  redis.call('HSET', KEYS[1], 'active_response_id', next_rid)
else
  redis.call('LREM', KEYS[7], 0, ARGV[3])
end
put_message(KEYS[1], KEYS[2], ARGV[9], ARGV[10])
if ARGV[15] ~= '' then redis.call('HSET', KEYS[9], ARGV[9], ARGV[15]) end
redis.call('HSET', KEYS[1], 'updated_at', now, 'input_tokens', input_tokens, 'output_tokens', output_tokens)
local offset = log_event(KEYS[1], KEYS[3], ARGV[16], ARGV[18], ARGV[19])
redis.call('HSET', KEYS[4], 'status', ARGV[6], 'reason', ARGV[7], 'engine', ARGV[8], 'sequence_number', last,
  'text_length', ARGV[11], 'done_at', now, 'done_offset', offset, 'next', next_rid)
if num_fields > 0 then redis.call('HSET', KEYS[4], unpack(ARGV, 24, 23 + num_fields)) end
if redis.call('HGET', KEYS[1], 'active_response_id') == '' then
  let_go(ARGV[20], {KEYS[1], KEYS[2], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]})
end
if ARGV[22] ~= '' then ARGV[#ARGV] = ARGV[22] end
publish_response(ARGV[3], ARGV[4], first, last, table.concat(ARGV, '\n', start))
publish_session(m[2], offset, ARGV[16])
return {'ok', offset, last, next_rid, r[12], now, 0}
