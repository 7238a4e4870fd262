-- Releases a lease. KEYS: lease. ARGV: prefix, token.
if redis.call('HGET', KEYS[1], 'token') == ARGV[2] then
    redis.call('DEL', KEYS[1])
end
return 0
