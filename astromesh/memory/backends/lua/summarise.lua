-- Stores a summary that covers more turns than the stored one, and none after the last turn. KEYS: session, turns. ARGV: text, upto, now.
local owner, ends, upto = unpack(redis.call('HMGET', KEYS[1], 'owner', 'expires', 'upto'))
local farther = tonumber(ARGV[2]) > tonumber(upto or 0) and tonumber(ARGV[2]) <= redis.call('LLEN', KEYS[2])
if owner and farther and not over(ends, ARGV[3]) then
    redis.call('HSET', KEYS[1], 'summary', ARGV[1], 'upto', ARGV[2])
end
return false
